// A chunk handed to another duck that has a ticket for it: unpacked to the bytes that its digest names.
#pragma once

#include "connection.hpp"
#include "handlers.hpp"

namespace duckfleet::duckd {

// Answers the first frame of a connection with a ticket: with the chunk, or a refusal.
void give_chunk(ControlConnection& io, DuckContext& duck, const wire::ControlFrame& request);

}  // namespace duckfleet::duckd
