package main

// Pods without events.

var approximateMutants = table{breaks: ".", rows: []mutant{
	{"an estimate survives the first event", "podModel.settle", "pm.approx.Store(nil)", "", "TestApproximateBecomesExact"},
	{"a transport makes a pod exact", "podModel.settle", "if pm.approx.Load() != nil {\n\t\t\treturn", "if pm.approx.Load() != nil && len(pm.streams) == 0 {\n\t\t\treturn", "TestApproximateBecomesExact"},
	{"an approximate pod goes with its transport", "Indexer.leaveEmpty", " || pm.approx.Load() != nil", "", "TestApproximateBecomesExact"},
	{"a correction to another rank", "approximation.of", "if ok {\n\t\treturn a.ranks[at]", "if ok || len(a.ranks) > 0 {\n\t\treturn a.ranks[max(0, at-1)]", "TestApproximateRanks"},
	{"profiles are not asked for", "Indexer.lookUp", "if x.introduce(set) {", "if false {", "TestApproximate"},
	{"what a wrong Profile brings stays", "Indexer.introducePod", "delete(p.asked, model)", "", "TestApproximateIsAskedFor"},
	{"what is wrong with a Profile is not told", "Indexer.routed", "err := x.refused(pod, k.set.base); err != nil", "err := x.refused(pod, k.set.base); false", "TestApproximateIsAskedFor"},
	{"BlockTokens unchecked", "Approximate.validate", "case a.BlockTokens < 1:", "case false:", "TestApproximateIsAskedFor"},
	{"Blocks unchecked", "Approximate.validate", "a.Blocks < 1 || ", "", "TestApproximateIsAskedFor"},
	{"any number of Blocks", "Approximate.validate", " || a.Blocks > maxApproximate", "", "TestApproximateIsAskedFor"},
	{"TTL unchecked", "Approximate.validate", "case a.TTL < 0:", "case false:", "TestApproximateIsAskedFor"},
	{"invented models keep the room", "Indexer.makeRoom", "len(p.models)+len(p.asked) < MaxModels", "true", "TestApproximateInventedModels"},
	{"a model in use makes room first", "Indexer.makeRoom", "if name == \"\" || idle {", "if name == \"\" {", "TestApproximateInventedModels"},
	{"what is believed is in snapshots", "pod.appendState", "return p.models[name].approx.Load() != nil", "return false", "TestApproximateSnapshot"},
	{"TTL of Approximate ignored", "approximation.of", "estimate.New(a.Blocks, a.TTL)", "estimate.New(a.Blocks, 0)", "TestApproximate"},
	{"Observe corrects nothing", "ledger.observe", "if b := t.believed; b != nil {", "if b := t.believed; b != nil && false {", "TestApproximateObserve"},
	{"Observe in tokens", "ledger.observe", "u.CachedTokens/b.block", "u.CachedTokens", "TestApproximateObserve"},
	{"nonsense is observed", "ledger.observe", "u.CachedTokens >= 0 && u.CachedTokens <= most", "true", "TestApproximateObserve"},
	{"Abandon leaves what was sent", "ledger.abandon", "if b := l.at(slot).believed; b != nil {", "if b := l.at(slot).believed; false {", "TestApproximate"},
	{"what is believed ends with predictions", "scorer.findHits", "if a := pm.approx.Load(); a != nil {", "if a := pm.approx.Load(); a != nil && pm.predicted.Load() > 0 {", "TestApproximate"},
	{"without predictions nothing is believed", "scorer.foresee", "l.live.Load() == 0 && !sc.set.approximate", "l.live.Load() == 0", "TestApproximateBecomesExact"},
	{"what is believed is explained by events", "explainer.find", "case w.pod != nil && w.pod.approx > 0:", "case false:", "TestApproximateExplain"},
	{"a rank that was sent to is never explained", "Indexer.explain", "case int(b.row) > sc.real:", "case false:", "TestApproximateExplain"},
}}

var estimateMutants = table{breaks: "./internal/estimate", rows: []mutant{
	{"TTL ignored", "Cache.aged", "c.ttl > 0 && ", "false && ", "TestTTL"},
	{"head first", "Cache.use", "c.unlink(s)\n\t\tc.link(s, 0)", "", "TestRandom"},
	{"the youngest goes first", "Cache.oldest", "return c.slots[0].younger", "return c.slots[0].older", "TestOrder"},
	{"the TTL of what was used is not begun anew", "Cache.use", "c.slots[s].stamp = c.last", "", "TestTTL"},
	{"Undo forgets what was there before", "Cache.Undo", "n > int(p.run) && ", "n > 0 && ", "TestUndo"},
	{"Undo forgets what others have used", "Cache.Undo", " && c.slots[s].stamp == p.stamp", "", "TestUndo"},
	{"Undo forgets nothing", "Cache.Undo", "n > int(p.run) && ", "false && ", "TestUndo"},
	{"more is there than the capacity", "Cache.fit", "for c.len > blocks {", "for c.len > 2*blocks {", "TestOrder"},
	{"a long prompt counts whole", "Cache.Sent", "kept := min(blocks, c.capacity)", "kept := blocks", "TestLongPrompt"},
	{"another stride keeps what was there", "Cache.Sent", "c.clear()", "", "TestRandom"},
	{"what was lost stays", "Cache.lost", "c.drop(s)", "break", "TestLost"},
	{"the end of a request is no use", "Cache.Observed", "c.use(s)", "_ = s", "TestObservedIsUse"},
	{"the last block is expected", "Cache.Observed", " && (reused < run-1 || run < int(p.blocks))", "", "TestRandom"},
	{"a loss lowers nothing", "Cache.lost", "c.capacity = min(c.capacity, since)", "", "TestCapacity"},
	{"a restart is a small capacity", "Cache.lost", "if since < c.capacity/2 {", "if false {", "TestLost"},
	{"no end to a raised capacity", "Cache.raise", ", c.told*maxCorrection)", ", 1<<40)", "TestCapacity"},
	{"reuse raises nothing", "Cache.Observed", "case reused > run && p.cut:", "case false:", "TestCapacity"},
}}
