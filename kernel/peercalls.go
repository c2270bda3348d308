package kernel

import (
	"maps"

	"sigmaos.dev/kernel/cluster"
	"sigmaos.dev/kernel/connect"
	"sigmaos.dev/kernel/reach"
	"sigmaos.dev/kernel/talk"
)

// Calls of sigmads among themselves, beside those of packages below
// (docs/internals/machines-protocol.md). Who calls, in which life, is known from the link.
//
//	end-realm realm -> -
//	load      - -> lines of /sys/load
//	ledger    usage or usage-procs, realm or "", after -> lines, last, more
//	told      ledger, since, version, []realm that are gone, lines of /sys/usage that are new since -> version that is held    to a control machine, see copies.go
//	copies    after -> lines with what ledgers it was told of, last, more
//	copied    ledger, machine, realm or "", after, time -> lines, last, more
const (
	peerEndRealm = "end-realm"
	peerLedger   = "ledger"
	peerLoad     = "load"
	peerTold     = "told"
	peerCopies   = "copies"
	peerCopied   = "copied"
)

// registerPeerCalls adds the methods about procs to what other machines may call.
func (k *Kernel) registerPeerCalls() {
	maps.Copy(k.reach.Calls, map[string]reach.Call{peerEndRealm: k.peerEndRealm,
		peerLedger: k.peerLedger, peerLoad: k.peerLoad, peerTold: k.peerTold, peerCopies: k.peerCopies,
		peerCopied: k.peerCopied, peerInit: k.peerInit, peerEvents: k.peerEvents, peerDecisions: k.peerDecisions,
		peerCredentials: k.peerCredentials, connect.PeerRevoke: k.connect.RevokeCall,
		connect.PeerBegun: k.connect.PeerBegun, cluster.PeerLeave: k.cluster.PeerLeave,
		talk.PeerTraffic: k.talk.PeerTraffic, talk.PeerDistances: k.talk.PeerDistances, talk.PeerTouch: talk.Touch})
}
