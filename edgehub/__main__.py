"""`python -m edgehub`."""

from edgehub.cli.main import main

if __name__ == "__main__":
    main()
