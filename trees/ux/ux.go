// Package ux is the scratch storage of one machine: files on its local disk, a tree of its own for
// each realm.
//
// It promises what diskfs promises, with files that are written in place: writes are visible at
// once, appends are atomic with each other, files may be sparse, Put replaces atomically, and an
// opened file is handed out as a descriptor for reading (sigma.FilePasser), so that reads need not
// pass through the server. Nothing is durable before Sync, and nothing leaves the machine: procs
// that want their files to outlive it put them into s3. Permissions and times of files can be set
// and are kept; the permissions keep nobody from anything.
//
// It assumes that Attach is called with principals that the machine stamped. sigmad serves it at
// /ux/MACHINE.
package ux

import (
	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/diskfs"
)

// Config says where the files are and what bounds them; see diskfs.Config.
type Config struct {
	Dir        string
	QuotaBytes sigma.Bytes   // per realm; 0 means none
	Quota      *diskfs.Quota // instead; nil if all are QuotaBytes
	OpenMax    int           // descriptors per realm; 0 means diskfs.OpenMaxDefault
}

// Tree is a diskfs.Tree: Attach, RemoveRealm, Close.
type Tree struct{ *diskfs.Tree }

// New opens or makes the scratch storage in cfg.Dir.
func New(cfg Config) (*Tree, error) {
	t, err := diskfs.New(diskfs.Config{Dir: cfg.Dir, QuotaBytes: cfg.QuotaBytes, Quota: cfg.Quota,
		OpenMax: cfg.OpenMax, Policy: diskfs.Policy{Links: true, Attributes: true}})
	if err != nil {
		return nil, sigma.Wrap("ux.New", cfg.Dir, err)
	}
	return &Tree{t}, nil
}
