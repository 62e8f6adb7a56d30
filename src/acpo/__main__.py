"""`python -m acpo`, for launchers that start modules."""

from acpo.cli import app

if __name__ == "__main__":
    app(prog_name="acpo")
