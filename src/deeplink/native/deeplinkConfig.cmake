# find_package(deeplink) of CMake: the C headers that a vendor's library is compiled with.
#
#   find_package(deeplink REQUIRED)
#   add_library(my_chip MODULE my_chip.c)
#   target_link_libraries(my_chip PRIVATE deeplink::headers)
#
# `cmake -Ddeeplink_DIR=$(python -m deeplink.native --cmakedir)` finds this file; scikit-build-core
# finds it without.
get_filename_component(root "${CMAKE_CURRENT_LIST_DIR}/../.." ABSOLUTE)
if(NOT TARGET deeplink::headers)
  add_library(deeplink::headers INTERFACE IMPORTED)
  set_target_properties(deeplink::headers PROPERTIES INTERFACE_INCLUDE_DIRECTORIES
    "${root}/diopi/include;${root}/torch_dipu/csrc/include")
endif()
