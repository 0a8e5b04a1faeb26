import warnings
from importlib.util import find_spec

# everything here needs the extra "flower"
collect_ignore_glob = [] if find_spec("flwr") else ["*.py"]
if not collect_ignore_glob:
    with warnings.catch_warnings():
        # typer 0.20, which flwr 1.41 asks for, asks click 8.5 for a name that click means to drop
        warnings.filterwarnings("ignore", r"'click\.", DeprecationWarning)
        import flwr.clientapp
        import flwr.serverapp  # noqa: F401 - once imported it warns no more
