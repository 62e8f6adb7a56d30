"""What TRL imports for its server mode, which the stand-in does not have."""


def get_ip() -> str:
    return "127.0.0.1"
