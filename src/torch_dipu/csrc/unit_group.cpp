// The translation unit of what needs c10d.
#include "flight.cpp"
#include "dicl.cpp"
#include "chip_queue.cpp"
#include "communicator.cpp"
