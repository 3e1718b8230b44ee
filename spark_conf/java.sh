#!/bin/sh
# Prints the home of a Java 17+ runtime. Where there is none and we may, installs one with the system's package manager.
set -u

major() { "$1" -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p' | head -n 1; }

home_of() { # the home of a java launcher, links followed
    launcher=$(readlink -f "$1") || return 1
    dirname "$(dirname "$launcher")"
}

find_java() {
    for launcher in "${JAVA_HOME:+$JAVA_HOME/bin/java}" "$(command -v java 2>/dev/null)" \
        /usr/lib/jvm/*/bin/java /opt/homebrew/opt/openjdk*/bin/java; do
        [ -n "$launcher" ] && [ -x "$launcher" ] || continue
        version=$(major "$launcher")
        [ -n "$version" ] && [ "$version" -ge 17 ] && home_of "$launcher" && return 0
    done
    return 1
}

find_java && exit 0

if [ "$(id -u)" = 0 ]; then
    echo "kafka-ds: no Java 17+ found; installing a runtime with the system's package manager" >&2
    if command -v apt-get > /dev/null; then
        { apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends default-jre-headless; } >&2
    elif command -v dnf > /dev/null; then dnf install -y java-21-openjdk-headless >&2
    elif command -v apk > /dev/null; then apk add openjdk21-jre-headless >&2
    elif command -v zypper > /dev/null; then zypper --non-interactive install java-21-openjdk-headless >&2
    fi
    find_java && exit 0
fi
echo "kafka-ds: Spark needs Java 17 or newer: install it (Debian: apt-get install default-jre-headless) or set JAVA_HOME" >&2
exit 1
