"""Moving data between host and device."""
