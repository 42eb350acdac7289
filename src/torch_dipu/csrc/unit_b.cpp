// Second of the translation units: what needs Python or c10d.
#include "autocast.cpp"
#include "dicl.cpp"
#include "hook.cpp"
#include "bind.cpp"
