// SPDX-License-Identifier: Apache-2.0
#pragma once

// Clang's thread-safety attributes; nothing for other compilers.
#if defined(__clang__)
#define STRETTO_ATTRIBUTE(x) __attribute__((x))
#else
#define STRETTO_ATTRIBUTE(x)
#endif

#define STRETTO_CAPABILITY(x) STRETTO_ATTRIBUTE(capability(x))
#define STRETTO_SCOPED_CAPABILITY STRETTO_ATTRIBUTE(scoped_lockable)
#define STRETTO_GUARDED_BY(x) STRETTO_ATTRIBUTE(guarded_by(x))
#define STRETTO_PT_GUARDED_BY(x) STRETTO_ATTRIBUTE(pt_guarded_by(x))
#define STRETTO_REQUIRES(...) STRETTO_ATTRIBUTE(requires_capability(__VA_ARGS__))
#define STRETTO_ACQUIRE(...) STRETTO_ATTRIBUTE(acquire_capability(__VA_ARGS__))
#define STRETTO_RELEASE(...) STRETTO_ATTRIBUTE(release_capability(__VA_ARGS__))
#define STRETTO_EXCLUDES(...) STRETTO_ATTRIBUTE(locks_excluded(__VA_ARGS__))
#define STRETTO_ASSERT_CAPABILITY(x) STRETTO_ATTRIBUTE(assert_capability(x))
