"""Shell: `python -m broker.cli` is the same as `kafka-ds`."""

from broker.cli.main import main

if __name__ == "__main__":
    main()
