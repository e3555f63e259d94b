# SPDX-License-Identifier: Apache-2.0
# One function per kind of target, so that a module's CMakeLists.txt is a list of its files.
include(FeatureSummary)

# Warnings, sanitizers and floating-point rules of our own code; linked PRIVATE, never exported.
add_library(stretto_options INTERFACE)
target_compile_options(stretto_options INTERFACE
  -Wall -Wextra -Wpedantic -Werror -Wconversion -Wsign-compare -Wshadow -Wnon-virtual-dtor
  -ffp-contract=off)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  # g++ 12 sees impossible overlaps in std::string at -O3 (its bug 105651).
  target_compile_options(stretto_options INTERFACE -Wno-restrict -Wno-stringop-overflow)
endif()
if(CMAKE_CXX_COMPILER_ID MATCHES "Clang")
  target_compile_options(stretto_options INTERFACE -Wthread-safety -Wthread-safety-beta)
endif()
if(STRETTO_SANITIZE)
  target_compile_options(stretto_options INTERFACE
    -fsanitize=${STRETTO_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  target_link_options(stretto_options INTERFACE -fsanitize=${STRETTO_SANITIZE})
  if(STRETTO_SANITIZE MATCHES "thread")
    # GoogleTest and libstdc++ fences are understood; g++ warns about atomic_thread_fence.
    target_compile_options(stretto_options INTERFACE $<$<CXX_COMPILER_ID:GNU>:-Wno-tsan>)
  endif()
endif()

option(STRETTO_FUZZ "Build the fuzz targets, and everything under them for fuzzing (clang)" OFF)
if(STRETTO_FUZZ)
  add_custom_target(fuzz_targets)
  if(NOT CMAKE_CXX_COMPILER_ID MATCHES "Clang" OR STRETTO_SANITIZE)
    message(FATAL_ERROR "STRETTO_FUZZ needs clang, and brings its own sanitizers")
  endif()
  target_compile_options(stretto_options INTERFACE
    -fsanitize=fuzzer-no-link,address,undefined -fno-omit-frame-pointer -fno-sanitize-recover=all)
  target_link_options(stretto_options INTERFACE -fsanitize=address,undefined)
endif()

# stretto_add_module(name SOURCES a.cc ... [PUBLIC targets] [PRIVATE targets])
# Makes stretto_<name>, alias stretto::<name>.
function(stretto_add_module name)
  cmake_parse_arguments(ARG "" "" "SOURCES;PUBLIC;PRIVATE" ${ARGN})
  set(target stretto_${name})
  add_library(${target} STATIC ${ARG_SOURCES})
  add_library(stretto::${name} ALIAS ${target})
  set_target_properties(${target} PROPERTIES EXPORT_NAME ${name})
  target_include_directories(${target} PUBLIC
    $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>
    $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  # Internal headers are included as "base/log.hpp"; consumers of the package never see them.
  target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR}/src)
  target_link_libraries(${target} PUBLIC ${ARG_PUBLIC} PRIVATE ${ARG_PRIVATE}
    $<BUILD_INTERFACE:stretto_options>)
  set_property(GLOBAL APPEND PROPERTY STRETTO_MODULES ${target})
endfunction()

# What `ctest -L 'unit|conformance'` runs.
if(STRETTO_BUILD_TESTS)
  add_custom_target(quick_tests)
endif()

# stretto_add_test(name SOURCES a_test.cc ... LINK targets [LABEL unit|conformance|slow] [TIMEOUT s] [ONE_THREAD])
# One ctest entry per binary; the label defaults to unit.  What has but ONE_THREAD is not built under ThreadSanitizer, which
# would find nothing in it.
function(stretto_add_test name)
  if(NOT STRETTO_BUILD_TESTS)
    return()
  endif()
  cmake_parse_arguments(ARG "ONE_THREAD" "LABEL;TIMEOUT" "SOURCES;LINK;ARGUMENTS" ${ARGN})
  if(ARG_ONE_THREAD AND STRETTO_SANITIZE MATCHES "thread")
    return()
  endif()
  add_executable(${name} ${ARG_SOURCES})
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR})
  target_link_libraries(${name} PRIVATE ${ARG_LINK} stretto_options GTest::gtest_main)
  if(STRETTO_SANITIZE)
    target_compile_options(${name} PRIVATE -O0)  # halves what compiling a test takes; what it tests keeps -O1
  endif()
  add_test(NAME ${name} COMMAND ${name} ${ARG_ARGUMENTS})
  if(NOT ARG_LABEL)
    set(ARG_LABEL unit)
  endif()
  if(ARG_LABEL MATCHES "^(unit|conformance)$")
    add_dependencies(quick_tests ${name})
  endif()
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 120)
  endif()
  set_tests_properties(${name} PROPERTIES LABELS "${ARG_LABEL}" TIMEOUT ${ARG_TIMEOUT})
endfunction()

# stretto_add_fuzz(foo_fuzz SOURCES foo_fuzz.cc LINK targets), in tests/fuzz: with STRETTO_FUZZ a libFuzzer
# target, which CI runs for 40 s; without it a unit test of the same code on the examples and what is near them.
# Examples to start from lie in tests/fuzz/corpus/foo_fuzz.
function(stretto_add_fuzz name)
  cmake_parse_arguments(ARG "" "" "SOURCES;LINK" ${ARGN})
  if(NOT STRETTO_FUZZ)
    if(STRETTO_SANITIZE)
      return()  # .ci/run fuzz runs the same code under sanitizers
    endif()
    stretto_add_test(${name}_test SOURCES near_examples_test.cc ${ARG_SOURCES} LINK ${ARG_LINK})
    target_compile_definitions(${name}_test PRIVATE
      STRETTO_FUZZ_EXAMPLES="${CMAKE_CURRENT_SOURCE_DIR}/corpus/${name}")
    return()
  endif()
  add_executable(${name} ${ARG_SOURCES})
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR})
  target_link_libraries(${name} PRIVATE ${ARG_LINK} stretto_options)
  target_link_options(${name} PRIVATE -fsanitize=fuzzer)
  add_dependencies(fuzz_targets ${name})
endfunction()
