// The end of a backward pass, for calls whose gradients are gathered: see unit_gathered.cpp.
#pragma once

namespace op_tools {

void finish_gathered();  // those that the pass went through in part are told so; needs no GIL

}  // namespace op_tools
