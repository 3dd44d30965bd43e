"""Federated algorithms, one file each."""

if __name__ != "fedbayes.inference":
    raise ImportError(f"this is `fedbayes.inference`, not `{__name__}`: write `import fedbayes.inference`")
