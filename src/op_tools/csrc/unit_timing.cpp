// OpTimeMeasure.
#include "timing/time_sink.cpp"
