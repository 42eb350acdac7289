// Second of the translation units: what needs Python.
#include "autocast.cpp"
#include "hook.cpp"
#include "bind.cpp"
