// SPDX-License-Identifier: Apache-2.0
// Whoever writes a back end elsewhere can include every conformance suite.
#include "stretto/spi/conformance/device_conformance.hpp"
#include "stretto/spi/conformance/exchange_conformance.hpp"
#include "stretto/spi/conformance/transport_conformance.hpp"
