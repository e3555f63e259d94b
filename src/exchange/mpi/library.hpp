// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "stretto/spi/control.hpp"
#include "stretto/status.hpp"

#include <string>

// The bindings for C++ are gone from the standard, and warn.
#define OMPI_SKIP_MPICXX 1
#define MPICH_SKIP_MPICXX 1
#include <mpi.h>

namespace stretto::exchange {

/// A code of MPI's as a Status; `what` says who did what.
Status mpi_status(int code, const std::string& what);

/// Starts MPI if nobody has, and makes a communicator of this group's ranks, in their order.
///
/// All ranks call it together; that all can is agreed over the control connections before MPI is
/// asked for anything that waits.  The communicator returns errors, and lives as long as MPI:
/// freeing it is a collective call, and destructors make none.
///
/// A MPI that was started here is ended at the program's end: if all ranks of the group get there
/// within 5 seconds, by MPI_Finalize; if not, or if an all-reduce was broken off, not at all, which
/// mpirun then reports.  So the end is bounded too.
/// A rank that is lost while the others wait for it within MPI ends their processes (exit code 4).
/// Threading: one call at a time.     Blocking: until the deadline.
/// Errors:    kUnsupported, on every rank, if one has no MPI or was not started by the same mpirun.
Result<MPI_Comm> join_mpi(spi::ControlPlane& control, Deadline deadline);

/// An all-reduce was left unfinished: waiting for others in MPI is no longer safe.
void give_up_mpi() noexcept;

}  // namespace stretto::exchange
