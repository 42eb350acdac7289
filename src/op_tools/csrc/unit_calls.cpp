// Interception: which calls are recorded, and what a record says about a call.
#include "autograd/gradient_hooks.cpp"
#include "call/call_headers.cpp"
#include "call/ids.cpp"
#include "intercept/api_function.cpp"
#include "intercept/aten_observer.cpp"
#include "intercept/op_table.cpp"
#include "intercept/signature_filter.cpp"
