"""`python -m blockscale` is the command `blockscale`."""

from blockscale.cli import app

if __name__ == "__main__":
    app()
