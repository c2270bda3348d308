package kernel

import (
	"maps"

	"sigmaos.dev/kernel/cluster"
	"sigmaos.dev/kernel/connect"
	"sigmaos.dev/kernel/reach"
	"sigmaos.dev/kernel/talk"
)

// registerPeerCalls adds the methods about procs to what other machines may call.
func (k *Kernel) registerPeerCalls() {
	maps.Copy(k.reach.Calls, map[string]reach.Call{connect.PeerRevoke: k.connect.RevokeCall,
		connect.PeerBegun: k.connect.PeerBegun, cluster.PeerLeave: k.cluster.PeerLeave,
		talk.PeerTraffic: k.talk.PeerTraffic, talk.PeerDistances: k.talk.PeerDistances, talk.PeerTouch: talk.Touch})
}
