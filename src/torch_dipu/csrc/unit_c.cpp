// Third of the translation units: a vendor's functions in C.
#include "c_thunks.cpp"
#include "c_call.cpp"
#include "c_plan.cpp"
#include "c_route.cpp"
