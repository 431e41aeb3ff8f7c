"""A device of our own, so that stream order and device memory can be proved on a machine without one.

`runtime` is the device, `lateframe` a small framework whose arrays live on it and `adapter` what
teaches matrix_interop that framework. Device type "ext" (DLPack's kDLExtDev).
"""
