"""Shell: `python -m broker.cli`, which is `kafka-ds` where no script is installed."""

from broker.cli.main import main

if __name__ == "__main__":
    main()
