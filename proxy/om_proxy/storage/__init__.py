"""Keep memories. `base` is the contract, each folder is a backend, and each `…_store` wraps one."""
