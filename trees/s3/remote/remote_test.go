package remote

import (
	"os"
	"strings"
	"testing"

	"sigmaos.dev/internal/s3server"
	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/treetest"
)

func TestMain(m *testing.M) { os.Exit(s3server.Main(m)) }

// bucketsOnly is the check that s3 has, near enough.
func bucketsOnly(top bool, name string, kind sigma.FileKind) error {
	if top && (kind != sigma.KindDir || strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789-") != "") {
		return sigma.PathError("remote.bucketsOnly", sigma.KindPermission, name)
	}
	return nil
}

func storeAt(address string) Store {
	return Store{URL: "http://" + address + "/" + s3server.Bucket + "/some/prefix", AccessKey: s3server.AccessKey,
		SecretKey: s3server.SecretKey}
}

func newTree(t *testing.T, cfg Config) *Tree {
	t.Helper()
	if cfg.Dir == "" {
		cfg.Dir = t.TempDir()
	}
	cfg.Check = bucketsOnly
	tree, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(tree.Close)
	return tree
}

func TestConformance(t *testing.T) {
	srv := s3server.Start(t)
	treetest.Run(t, treetest.Config{
		New:       func(t *testing.T) sigma.Tree { return at{newTree(t, Config{}), storeAt(srv.Address)} },
		Principal: sigma.Principal{Realm: "r"},
		Lacks: []treetest.Capability{treetest.Rewrite, treetest.Symlinks, treetest.Endpoints, treetest.SetPerm,
			treetest.SetModified,
			treetest.Leases, treetest.Pipes, treetest.RenameDirs, treetest.LongPaths, treetest.Hidden,
			treetest.Identity},
		ListEntries: 1500,
		Depth:       100,
	})
}
