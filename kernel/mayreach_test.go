package kernel

import (
	"testing"

	"sigmaos.dev/kernel/hostsetup"
	"sigmaos.dev/kernel/link"
	"sigmaos.dev/kernel/reach"
	"sigmaos.dev/sigma"
)

// TestMayReach: each kind of principal with each target. What is not listed as allowed is refused.
func TestMayReach(t *testing.T) {
	who := map[string]sigma.Principal{
		"provider":        {Realm: "system", Machine: "m2", System: true},
		"provider for a":  {Realm: "a", Machine: "m2", System: true},
		"proc":            {Realm: "a", Proc: "p", Machine: "m2"},
		"service":         {Realm: "system", Proc: "p", Machine: "m2"},
		"nobody":          {Machine: "m2"},
		"no realm":        {Proc: "p", Machine: "m2"},
		"no proc":         {Realm: "a", Machine: "m2"},
		"almighty proc":   {Realm: "a", Proc: "p", Machine: "m2", System: true},
		"realmless":       {Machine: "m2", System: true},
		"ill-named realm": {Realm: "A b", Proc: "p", Machine: "m2"},
	}
	endpoint := sigma.Endpoint{Realm: "a", Machine: "m1", Proc: "q", ID: "AAECAwQFBgcICQoLDA0ODw",
		Form: sigma.FormTree}.String()
	targets := []link.Target{{Kind: link.ToEndpoint, Name: endpoint}, {Kind: link.ToBeat, Name: "beat"},
		{Kind: link.ToStream, Name: "named"}, {Kind: link.ToStream, Name: "s3d"}, {Kind: link.ToStream, Name: "sigmad"},
		{Kind: 0, Name: "named"}, {Kind: 9, Name: "named"}}
	for _, name := range append(hostsetup.BootSet(), "peer", "launcher", "../named", "") {
		targets = append(targets, link.Target{Kind: link.ToService, Name: name})
	}
	machines := []string{"beat beat", "stream named", "service named", "service besched", "service s3d",
		"service machined", "service lcsched", "service peer", "service sigmad", "endpoint " + endpoint}
	procs := []string{"service sigmad", "endpoint " + endpoint}
	allowed := map[string]bool{}
	for _, target := range machines {
		allowed["provider "+target], allowed["provider for a "+target] = true, true
	}
	for _, target := range procs {
		allowed["proc "+target], allowed["service "+target] = true, true
	}
	for name, p := range who {
		for _, target := range targets {
			err := reach.MayReach(p, target)
			label := name + " " + target.String()
			if target.Kind == link.ToEndpoint {
				label = name + " endpoint " + target.Name
			}
			if (err == nil) != allowed[label] {
				t.Errorf("%s: got %v", label, err)
			}
			if kind := sigma.KindOf(err); err != nil && kind != sigma.KindPermission && kind != sigma.KindNotFound {
				t.Errorf("%s: refused with %v", label, kind)
			}
		}
	}
}
