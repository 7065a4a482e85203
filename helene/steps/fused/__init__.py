"""The update of a step by the kernels: for which steps there is one, and its launches."""
