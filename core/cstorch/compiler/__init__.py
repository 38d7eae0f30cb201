"""A Program becomes an Executable: passes over the graph, AOTInductor or the interpreter, the cache."""
