# SPDX-License-Identifier: Apache-2.0
# What `cmake --install` puts where: public headers, libraries, the CMake package `stretto` with the
# components core, libtorch and conformance, and stretto.pc for the rest of the world.
# tests/install-consumer builds programs against the result.
include(CMakePackageConfigHelpers)

set(stretto_headers ${PROJECT_SOURCE_DIR}/include)
# stretto_public_headers(target SCOPE header...): headers below include/stretto.
function(stretto_public_headers target scope)
  list(TRANSFORM ARGN PREPEND ${stretto_headers}/stretto/)
  target_sources(${target} ${scope}
    FILE_SET HEADERS BASE_DIRS ${stretto_headers} FILES ${ARGN})
endfunction()

stretto_public_headers(stretto_base PUBLIC
  options.hpp status.hpp types.hpp spi/codec.hpp spi/device.hpp spi/exchange.hpp
  spi/transport.hpp)
stretto_public_headers(stretto_rendezvous PUBLIC group.hpp spi/control.hpp)
stretto_public_headers(stretto_engine PUBLIC engine.hpp report.hpp)
if(TARGET stretto_collective)
  stretto_public_headers(stretto_collective PUBLIC collective.hpp)
endif()

# The suites that hold an implementation of a seam to its contract, for authors elsewhere.
add_library(stretto_conformance INTERFACE)
set_target_properties(stretto_conformance PROPERTIES EXPORT_NAME conformance)
target_link_libraries(stretto_conformance INTERFACE stretto::base GTest::gtest)
stretto_public_headers(stretto_conformance INTERFACE
  spi/conformance/codec_conformance.hpp spi/conformance/codec_step_cases.hpp
  spi/conformance/codec_suite.hpp spi/conformance/codec_wire_cases.hpp spi/conformance/codec_world.hpp
  spi/conformance/device_conformance.hpp
  spi/conformance/exchange_conformance.hpp
  spi/conformance/exchange_world.hpp spi/conformance/repetition.hpp spi/conformance/transport_conformance.hpp
  spi/conformance/transport_endpoint.hpp spi/conformance/transport_harness.hpp)

# Static libraries need all that stands below them, so all modules go along.
get_property(stretto_core GLOBAL PROPERTY STRETTO_MODULES)
list(REMOVE_ITEM stretto_core stretto_libtorch stretto_device_adversarial)

# stretto::stretto is everything that needs no training library.
add_library(stretto_all INTERFACE)
add_library(stretto::stretto ALIAS stretto_all)
set_target_properties(stretto_all PROPERTIES EXPORT_NAME stretto)
target_link_libraries(stretto_all INTERFACE stretto::engine)
if(TARGET stretto_collective)
  target_link_libraries(stretto_all INTERFACE stretto::collective)
endif()

set(stretto_package ${CMAKE_INSTALL_LIBDIR}/cmake/stretto)
# stretto_install_component(name target...)
function(stretto_install_component name)
  foreach(target IN LISTS ARGN)
    get_target_property(type ${target} TYPE)
    get_target_property(sets ${target} INTERFACE_HEADER_SETS)
    if(NOT type STREQUAL "INTERFACE_LIBRARY")
      target_compile_features(${target} PUBLIC cxx_std_20)
    endif()
    set(headers)
    if(sets)
      set(headers FILE_SET HEADERS)
    endif()
    install(TARGETS ${target} EXPORT stretto-${name} ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} ${headers})
  endforeach()
  install(EXPORT stretto-${name} NAMESPACE stretto:: DESTINATION ${stretto_package}
    FILE stretto-${name}-targets.cmake)
endfunction()

stretto_install_component(core ${stretto_core} stretto_all)
stretto_install_component(conformance stretto_conformance)
if(TARGET stretto_libtorch)
  stretto_install_component(libtorch stretto_libtorch)
endif()

configure_package_config_file(cmake/stretto-config.cmake.in stretto-config.cmake
  INSTALL_DESTINATION ${stretto_package} NO_SET_AND_CHECK_MACRO)
# Until 1.0 an interface may change with each minor version.
write_basic_package_version_file(stretto-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/stretto-config.cmake
  ${PROJECT_BINARY_DIR}/stretto-config-version.cmake DESTINATION ${stretto_package})

# Modules were declared from below to above; a linker wants them the other way round.
set(stretto_link_order ${stretto_core})
list(REVERSE stretto_link_order)
list(TRANSFORM stretto_link_order PREPEND -l)
list(JOIN stretto_link_order " " STRETTO_PC_LIBS)
if(STRETTO_HAVE_UCX)
  set(STRETTO_PC_UCX " ucx")
endif()
set(STRETTO_PC_MPI)
if(STRETTO_HAVE_MPI)
  list(JOIN MPI_C_LIBRARIES " " STRETTO_PC_MPI)
endif()
file(RELATIVE_PATH STRETTO_PC_PREFIX /prefix/${CMAKE_INSTALL_LIBDIR}/pkgconfig /prefix)
string(REGEX REPLACE "/$" "" STRETTO_PC_PREFIX ${STRETTO_PC_PREFIX})
configure_file(cmake/stretto.pc.in stretto.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/stretto.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
install(FILES LICENSE NOTICE DESTINATION ${CMAKE_INSTALL_DOCDIR})
