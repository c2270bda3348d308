package outside

import (
	"encoding/json"
	"testing"

	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/sigmap"
)

// A machine that joins takes the etcd that it is told, unless its operator has said another way to
// it; whose names are there is never its operator's to say.
func TestToldEtcd(t *testing.T) {
	told := sigmap.Etcd{Members: []sigmap.EtcdMember{{Name: "etcd-1:2379", Address: "192.0.2.9:2379"}}, CA: "old",
		System: "us"}
	text, err := json.Marshal(told)
	if err != nil {
		t.Fatal(err)
	}
	k := &Outside{}
	if err := k.ToldEtcd(sigmap.EtcdPrefix + string(text)); err != nil || k.etcd.CA != "old" || k.etcd.System != "us" {
		t.Errorf("%+v: %v", k.etcd, err)
	}
	k.cfg.Etcd = &sigmap.Etcd{Members: told.Members, CA: "new"}
	if err := k.ToldEtcd(sigmap.EtcdPrefix + string(text)); err != nil || k.etcd.CA != "new" || k.etcd.System != "us" {
		t.Errorf("with the operator's certificates: %+v: %v", k.etcd, err)
	}
	for _, bad := range []string{"", "{}", `{"members":[{"name":"etcd","address":"etcd"}]}`, "{"} {
		if err := k.ToldEtcd(sigmap.EtcdPrefix + bad); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
	if err := k.ToldEtcd(sigmap.EtcdPrefix + "{}"); sigma.KindOf(err) != sigma.KindInvalid {
		t.Errorf("an etcd without members: %v", err)
	}
}
