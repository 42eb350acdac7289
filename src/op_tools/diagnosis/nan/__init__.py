"""The origin of the first NaN or Inf of a program."""
