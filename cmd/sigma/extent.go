package main

import (
	"context"
	"fmt"
	"strings"

	"sigmaos.dev/sigma"
)

const (
	// extentMax bounds what a command remembers of all that is in a directory: the bytes of the paths, and extentEntry for each. It is enough for two million files, and costs some times as much memory.
	extentMax   = 256 << 20
	extentEntry = 64
)

// extent is how much a command has seen of what lies below the directories that were named. A tree may be served by a tenant, and have no end.
type extent struct{ seen int }

// readDir lists a directory below one that was named.
func (x *extent) readDir(ctx context.Context, c sigma.Namespace, dir string) ([]sigma.DirEntry, error) {
	if strings.Count(dir, "/") > sigma.DepthMax {
		return nil, &sigma.Error{Op: "sigma.readDir", Path: dir[:min(len(dir), 100)] + "...", Kind: sigma.KindTooBig, Msg: fmt.Sprintf("has more than %d directories one in another, and perhaps no end", sigma.DepthMax), Hint: "name a directory further down, or leave out what its server makes up"}
	}
	entries, err := c.ReadDir(ctx, dir)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		if err := sigma.CheckName(e.Name); err != nil {
			return nil, sigma.Wrap("sigma.readDir", dir, err)
		}
		x.seen += len(dir) + len(e.Name) + extentEntry
	}
	if x.seen > extentMax {
		return nil, &sigma.Error{Op: "sigma.readDir", Path: dir, Kind: sigma.KindTooBig, Msg: "is in a directory that has more in it than one command takes, and perhaps no end", Hint: "name directories further down, one at a time"}
	}
	return entries, nil
}
