// OpTimeMeasure.
#include "timing/call_timer.cpp"
#include "timing/ledger.cpp"
