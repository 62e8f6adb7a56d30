"""Training frameworks: the only modules that know one."""
