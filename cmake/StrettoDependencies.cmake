# SPDX-License-Identifier: Apache-2.0
# Finds what is installed; nothing is ever downloaded.  STRETTO_WITH_X is AUTO (use it if it is
# there), ON (an error if it is not) or OFF.
include(FeatureSummary)

find_package(Threads REQUIRED)
find_package(PkgConfig REQUIRED)
find_package(tl-expected REQUIRED)
find_package(spdlog REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(CLI11 REQUIRED)
pkg_check_modules(HWY REQUIRED IMPORTED_TARGET libhwy)
pkg_check_modules(XXHASH REQUIRED IMPORTED_TARGET libxxhash)
find_path(ATOMIC_QUEUE_INCLUDE atomic_queue/atomic_queue.h REQUIRED)
if(STRETTO_BUILD_TESTS)
  find_package(GTest REQUIRED)
endif()

# stretto_component(NAME description) declares STRETTO_WITH_<NAME>.
macro(stretto_component name description)
  set(STRETTO_WITH_${name} AUTO CACHE STRING "${description}: AUTO, ON or OFF")
  set_property(CACHE STRETTO_WITH_${name} PROPERTY STRINGS AUTO ON OFF)
endmacro()

# stretto_component_found(NAME found-variable) decides STRETTO_HAVE_<NAME>.
macro(stretto_component_found name found)
  if(STRETTO_WITH_${name} STREQUAL "ON" AND NOT ${found})
    message(FATAL_ERROR "STRETTO_WITH_${name}=ON, but it was not found; install it or say AUTO or OFF")
  endif()
  if(${found} AND NOT STRETTO_WITH_${name} STREQUAL "OFF")
    set(STRETTO_HAVE_${name} ON)
  else()
    set(STRETTO_HAVE_${name} OFF)
  endif()
  # Not the bare name: a package of that name would hide it in the summary.
  add_feature_info("with ${name}" STRETTO_HAVE_${name} "STRETTO_WITH_${name}=${STRETTO_WITH_${name}}")
endmacro()

stretto_component(TORCH "libtorch adapter")
if(NOT STRETTO_WITH_TORCH STREQUAL "OFF")
  # libtorch's own package file adds flags to every target; keep them where they belong.
  set(stretto_saved_cxx_flags "${CMAKE_CXX_FLAGS}")
  find_package(Torch QUIET)
  set(CMAKE_CXX_FLAGS "${stretto_saved_cxx_flags}")
endif()
stretto_component_found(TORCH Torch_FOUND)

stretto_component(UCX "transport ucx: RDMA and device memory")
if(NOT STRETTO_WITH_UCX STREQUAL "OFF")
  pkg_check_modules(UCX QUIET IMPORTED_TARGET ucx>=1.13)
endif()
stretto_component_found(UCX UCX_FOUND)

stretto_component(MPI "MPI's own all-reduce as an exchange")
if(NOT STRETTO_WITH_MPI STREQUAL "OFF")
  find_package(MPI QUIET COMPONENTS C)
endif()
stretto_component_found(MPI MPI_C_FOUND)

if(NOT CMAKE_CXX_COMPILER_LAUNCHER)
  find_program(CCACHE ccache)
  if(CCACHE)
    set(CMAKE_CXX_COMPILER_LAUNCHER ${CCACHE})
  endif()
endif()
