include(CMakeFindDependencyMacro)
find_dependency(hiredlock 1.0)
include("${CMAKE_CURRENT_LIST_DIR}/nightly-targets.cmake")
