package main

var routerMutants = table{breaks: "./examples/router", rows: []mutant{
	{"a body that engines refuse is sent to one", "router.ServeHTTP", "errors.Is(err, kvindex.ErrRequest)", "errors.Is(err, nil) && err != nil", "TestErrors"},
	{"what cannot be scored is refused", "router.ServeHTTP", "errors.Is(err, kvindex.ErrRequest)", "err != nil", "TestErrors"},
	{"the load does not count", "router.ServeHTTP", "r.sent.Fill(pods)", "", "TestLoad"},
	{"the cache does not count", "router.ServeHTTP", "route.Default(", "route.LeastTokens(", "TestLoad"},
	{"what was sent does not count", "router.ServeHTTP", "r.Routed(&answer, best.Pod, best.Rank)", "kvindex.Ticket{}, error(nil)", "TestSiblings"},
	{"answers are not observed", "router.ServeHTTP", "defer r.Observe(ticket, kvindex.Usage{PromptTokens: -1, CachedTokens: -1})", "_ = ticket", "TestSiblings"},
	{"the load of a chat stays", "router.ServeHTTP", "defer r.sent.Sent(best.Pod, best.Rank, answer.PromptTokens, best.PredictedTokens).Done()", "r.sent.Sent(best.Pod, best.Rank, answer.PromptTokens, best.PredictedTokens)", "TestLoad"},
}}

var quickstartMutants = table{breaks: "./examples/quickstart", rows: []mutant{
	{"too high is too low", "accuracy.add", "a.low+b.Under", "a.low+b.Over", "TestOutcome"},
	{"one row of those observed is told", "result.observe", "range all {", "range all[:1] {", "TestOutcome"},
	{"what was sent does not count", "router.send", "r.fleet.indexer.Routed(&answer, s.Pod, s.Rank)", "kvindex.Ticket{}, error(nil)", "TestQuickstart"},
	{"what the engine reports is not told", "router.finish", "r.fleet.indexer.Observe(", "_ = append([]any(nil), ", "TestQuickstart"},
	{"round-robin to one pod", "workload.order", "turn*w.talks + rand", "0 * rand", "TestReadme"},
	{"all turns are shown", "router.line", "!t.all && ", "false && ", "TestQuickstart"},
	{"the first turns are shown, asked for all", "router.line", "!t.all && ", "", "TestQuickstart"},
}}

var declsMutants = table{breaks: "./internal/decls", tests: "./internal/systemtest", rows: []mutant{
	{"types have no fields", "Members", "fields = u.Fields", "", "TestUnknownNames"},
	{"interfaces have no methods", "Members", "fields = u.Methods", "", "TestUnknownNames"},
	{"what is embedded is not looked into", "Members", ", t.Name.Name+\".=\"+other)", ")", "TestUnknownNames"},
}}

var snapshotfileMutants = table{breaks: "./examples/snapshotfile", rows: []mutant{
	{"the file is written in its place", "save", "unfinished := path + \".unfinished\"", "unfinished := path", "TestKill"},
	{"a file that cannot be used is the end", "load", "return kvindex.New(opts...)\n\t}\n\treturn ix", "return nil, err\n\t}\n\treturn ix", "TestKeep"},
	{"the end is not saved", "keep", "running = false", "return", "TestKeep"},
	{"anybody may read the file", "save", "0o600", "0o644", "TestKeep"},
	{"what failed is left", "save", "return errors.Join(err, os.Remove(unfinished))", "return err", "TestKeep"},
}}

var replicaMutants = table{breaks: "./examples/replica", rows: []mutant{
	{"anybody gets a snapshot", "handler", "subtle.ConstantTimeCompare([]byte(given), []byte(\"Bearer \"+secret)) != 1", "given == \"?\"", "TestReplica"},
}}
