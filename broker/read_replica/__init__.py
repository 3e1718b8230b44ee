"""Shell: a broker with `lake.read.only`: it serves what the lake holds, and is no member of its cluster.

`server.py` puts it together, `follower.py` keeps it current, `partitions.py` and `groups.py` are what it knows, and
`apis.py` says what it answers: the handlers of other brokers for reads, a refusal that clients take as final otherwise.
"""
