"""Which verl this plugin fits."""

from importlib.metadata import PackageNotFoundError, version

from packaging.version import Version

from acpo.errors import ACPOError

OLDEST, TOO_NEW = Version("0.9"), Version("0.11.dev0")


def check_version() -> None:
    """Refuse a verl whose engines the plugin was not written for.

    Raises:
        ACPOError: verl is missing, older than 0.9 or newer than 0.10.
    """
    try:
        found = Version(version("verl"))
    except PackageNotFoundError:
        raise ACPOError(
            "acpo.verl needs verl, which is not installed here: docs/verl.md says how to make its "
            "environment (it cannot share TRL's)"
        ) from None
    if not OLDEST <= found < TOO_NEW:
        raise ACPOError(
            f"verl {found} is not supported: acpo.verl plugs into the engines of verl 0.9 and "
            "0.10; pip install 'verl>=0.9,<0.11'"
        )
