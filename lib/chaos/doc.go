// Package chaos does faults to procs of a realm: it kills and pauses them, by a plan that follows
// from a seed.
//
// It promises: the same configuration gives the same plan, and the same step with the same targets
// picks the same one. What was paused goes on when Run returns, whatever ended it. Each fault is
// reported once it is over, with its times by the clock of histories (lib/history).
//
// It assumes that the caller may kill and freeze its targets: the system decides that for each
// request, so a caller reaches the procs of realms that are its own, and no others. A caller that
// is killed leaves procs frozen; "sigma thaw" lets them go on.
//
// It costs: a list of the realm's procs and one or two requests for each fault.
//
// Links between procs, disks, clocks and machines are not its: a realm has no means to disturb
// them. The tests of sigmaOS do that from below (internal/netlab, internal/testenv).
package chaos
