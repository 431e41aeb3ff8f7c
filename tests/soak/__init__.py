"""Many exchanges: threads, memory, processes. Short in the quick tests, long in the slow ones."""
