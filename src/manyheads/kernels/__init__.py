"""Fast paths on a CPU, in Numba: decode attention that reads the cache once. Imported only where they are asked for."""
