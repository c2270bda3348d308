package roles

import "sigmaos.dev/kernel/meter"

// Files of /sys besides those of calls (wire/sigmap/calls.go).
const (
	Roster      = "roster"
	Connections = "connections"
	Traffic     = "traffic"
	Distances   = "distances"
	Version     = "version"
	Queues      = "queues"
	Utilisation = "utilisation"
	Limits      = "limits"
	Metrics     = "metrics"
	Usage       = meter.ByHour
	UsageProcs  = "usage-procs"
	Load        = "load"
)
