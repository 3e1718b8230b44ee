"""Shell: Java source compiled in the driver by the compiler that Spark itself carries (Janino): nothing to download."""

from __future__ import annotations

from typing import Any


def compiled(spark: Any, source: str, class_name: str, *, java_version: int | None = None) -> Any:
    """The class of this name, for the driver alone; ``java_version``: that of the language, Janino's default if None.

    Raises:
        Exception: whatever py4j makes of a source that cannot be compiled, or of a Spark without Janino.
    """
    jvm = spark._jvm
    compiler = jvm.org.codehaus.janino.SimpleCompiler()
    compiler.setParentClassLoader(jvm.java.lang.Thread.currentThread().getContextClassLoader())
    if java_version is not None:
        compiler.setSourceVersion(java_version)
        compiler.setTargetVersion(java_version)
    compiler.cook(source)
    return compiler.getClassLoader().loadClass(class_name)
