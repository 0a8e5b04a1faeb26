from importlib.util import find_spec

# everything here needs the extra "flower"
collect_ignore_glob = [] if find_spec("flwr") else ["*.py"]
