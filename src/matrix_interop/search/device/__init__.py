"""Exact search on a device: the same promise and the same bound as on the host, in the framework's own operations.

`arrays` says what a framework brings; torch and JAX have files of their own, all others use the array API.
"""
