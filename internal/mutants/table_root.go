package main

var rootMutants = table{breaks: ".", rows: []mutant{
	{"no length-1 cap", "cachedTokens", "(promptTokens - 1) / size * size", "promptTokens / size * size", "TestCachedTokens"},
	{"window group stands for the full one", "scorer.score", "case row.Group.Kind == index.GroupFull || row.FullGroups == 0:", "default:", "TestHybridIsAnUpperBound"},
	{"one full group is enough", "scorer.score", "case row.FullGroups > 1:", "case false:", "TestSeveralFullGroups"},
	{"a group that holds nothing does not count", "scorer.scoreHybrids", "if l.groups == sc.matches.Rows[l.row-1].FullGroups {", "if l.groups > 0 {", "TestSeveralFullGroups"},
	{"the group that holds the most counts", "scorer.scoreHybrids", "sc.better(l.bestRow, b)", "sc.better(b, l.bestRow)", "TestSeveralFullGroups"},
	{"ranks in any order", "scorer.improve", "b.row == 0 || sc.better(t, *b)", "true", "TestRanks"},
	{"ties by no name", "scorer.rank", "sc.best[b].cached-sc.best[a].cached, int(a-b)", "sc.best[b].cached-sc.best[a].cached, int(b-a)", "TestScorePods"},
	{"top ignored", "scorer.rank", "if top == 0 || top >= len(sc.best) {", "if true {", "TestTop"},
	{"top takes the last of equals", "scorer.rank", "cached <= sc.best[sc.order[at-1]].cached {", "cached < sc.best[sc.order[at-1]].cached {", "TestTop"},
	{"top in reverse", "scorer.rank", "for at > 0 && cached > sc.best", "for at > 0 && cached >= sc.best", "TestTop"},

	{"one pod twice", "Indexer.Candidates", "c.pods = slices.Compact(c.pods)", "", "TestScorePods"},
	{"candidates in no order", "Indexer.Candidates", "slices.Sort(c.pods)\n", "", "TestScorePods"},
	{"candidates never renewed", "Candidates.now", "set != nil && set.heard == c.x.heard.Load()", "set != nil", "TestCandidates"},
	{"an adapter of two models is of one", "Indexer.resolve", "if set.adapter != \"\" {", "if false {", "TestScopes"},

	{"a new pod is not heard", "Indexer.podModel", "md.pods[p.name] = pm\n\tx.heard.Add(1)", "md.pods[p.name] = pm", "TestCandidates"},
	{"a pod that leaves is not heard", "Indexer.RemovePod", "delete(x.pods, name)\n\tx.heard.Add(1)", "delete(x.pods, name)", "TestCandidates"},
	{"a new adapter is not heard", "Indexer.learnAdapters", "x.heard.Add(1)\n\t\tx.mu.Unlock()", "x.mu.Unlock()", "TestCandidates"},
	{"the best rank speaks for the pod", "podModel.settle", "state, heard = min(state, pm.stateOf(r)), true", "state, heard = max(state, pm.stateOf(r)), true", "TestLossByStream"},

	{"the first rank counts", "scorer.improve", "b.row == 0 || sc.better(t, *b)", "b.row == 0", "TestRanks"},
	{"the higher of equal ranks", "scorer.better", "sc.rankOf(b)-sc.rankOf(a)", "sc.rankOf(a)-sc.rankOf(b)", "TestRanks"},

	{"an adapter of other pods", "Indexer.resolve", "c.pods != nil && !slices.ContainsFunc(c.pods, func(pod string) bool { return told[pod] })", "false", "TestScopes"},

	{"model ignored", "Indexer.applyBatch", "src := index.Source{Pod: podID, Model: model, Rank: b.Rank}", "src := index.Source{Pod: podID, Model: \"m\", Rank: b.Rank}", "TestScopes"},
	{"rank ignored", "Indexer.applyBatch", "src := index.Source{Pod: podID, Model: model, Rank: b.Rank}", "src := index.Source{Pod: podID, Model: model}", "TestScopes"},

	{"salt ignored", "hasher.root", "{s.model, s.adapter, s.salt}", "{s.model, s.adapter}", "TestScopes"},
	{"seed ignored", "hasher.locals", "xxh3.HashSeed(full, h.localSeed)", "xxh3.Hash(full)", "TestScopesSeparate"},

	{"root of its own for each block", "converter.stored", "HasParent: e.HasParent,", "HasParent: false,", "TestScopes"},
	{"blocks of odd units", "variantOf", "return v, size/v.Unit <= index.MaxBlockUnits", "return v, true", "TestOddBlockSizes"},
	{"media ignored", "converter.readExtras", "c.extras = append(c.extras, mediaAt(", "_ = append(c.extras, mediaAt(", "TestMedia"},
	{"embeddings ignored", "converter.readExtras", "extra{first, embeds, id, 0}", "extra{-1, embeds, id, 0}", "TestMedia"},
	{"copies of others counted", "converter.convert", "if foreign(e) {", "if false {", "TestForeignCopies"},
	{"an unknown medium is the gpu", "tierOf", "\treturn TierOther\n", "\treturn TierGPU\n", "TestTiers"},

	{"gap forgiven", "Indexer.ingestReadable", "lost := v.Gap.Lost || v.Restarted", "lost := v.Restarted", "TestMessages"},
	{"restart forgiven", "Indexer.ingestReadable", "lost := v.Gap.Lost || v.Restarted", "lost := v.Gap.Lost", "TestMessages"},
	{"malformed forgiven", "Indexer.ingestUnreadable", "if err := x.lose(m, pm, st, -1, st.cursor(m, v, 0), v, bad, in); err != nil {", "if err := error(nil); err != nil {", "TestMessages"},
	{"other ranks of a stream keep their view", "Indexer.lose", "\t\tif n == but {", "\t\tif n >= 0 {", "TestLossByStream"},
	{"reports counted in a partial view", "Indexer.apply", "in.convert.partial = partial", "_ = partial", "TestPartialViewCountsNoReport"},
	{"a stored cursor ignored", "Indexer.joins", "if cur.Next == 0 {", "if true {", "TestMessagesAfterARestartOfTheHost"},
	{"a moved rank keeps its blocks", "Indexer.joins", "moved = r.state != StateUnknown", "moved = false", "TestARankMovesToAnotherStream"},

	{"adapter not in the units", "hasher.of", "if adapter != \"\" {", "if false {", "TestASaltNamedLikeAnAdapter"},

	{"a clear leaves the view partial", "Indexer.ingestReadable", "\tcase clears(&in.batch):", "\tcase false:", "TestMessages"},
	{"the time of a cursor is not stored", "stream.cursor", "Next: v.Next, Time: time}", "Next: v.Next}", "TestMessagesAfterARestartOfTheHost"},
	{"a first message is never held", "Indexer.ingestMessage", "if m.Hold && (v.Gap.Lost || v.Missed || v.Restarted) {", "if m.Hold && v.Gap.Lost {", "TestStreamRestarted"},

	{"a pod that waits for a replay is live", "stream.limit", "\tcase st.held:\n\t\treturn min(state, StateReplaying)", "\tcase false:\n\t\treturn min(state, StateReplaying)", "TestReplayedGap"},
	{"a lost connection is nothing", "stream.limit", "\tcase st.interrupted:", "\tcase false:", "TestStreamInterrupted"},

	{"any message ends the wait", "stream.release", "next > st.heldSeq || m.Seq >= st.heldSeq {", "next > 0 {", "TestAHoleStaysOpen"},
	{"a message that a replay brought is waited for", "stream.release", "next > st.heldSeq || m.Seq >= st.heldSeq {", "m.Seq > st.heldSeq && next > 0 {", "TestReplayBringsTheHeldMessage"},
	{"a held message outlives its connection", "Indexer.StreamInterrupted", "st.interrupted, st.held = true, false", "st.interrupted = true", "TestStreamInterrupted"},
	{"what others left is claimed beside", "Indexer.ingestReadable", "r.stream == \"\" && !x.ownsIndex {", "r.stream == \"\" && false {", "TestStreamRestartedOutlivesTheHost"},
	{"a rank that comes back is deaf", "Indexer.joins", "\tst.seq.Resume(cur.Epoch, cur.Next, cur.Time)\n", "\tif moved {\n\t\treturn true, nil\n\t}\n\tst.seq.Resume(cur.Epoch, cur.Next, cur.Time)\n", "TestARankComesBack"},
	{"partial for ever", "Indexer.ingestReadable", "r.state == StateUnknown && st.partial ||", "st.partial ||", "TestAClearEndsThePartialView"},
	{"slow calls find a removed pod", "Indexer.streamRestarted", "if p.removed || pm == nil || pm.streams[name] == nil {", "if pm == nil || pm.streams[name] == nil {", "TestThePodOfASlowCall"},
	{"invented streams shut out", "podModel.stream", "if len(pm.streams) >= MaxStreams && !pm.dropStream() {", "if len(pm.streams) >= MaxStreams {", "TestWhatAPodMayInvent"},

	{"models without bound", "Indexer.podModel", "if len(p.models) >= MaxModels {", "if false {", "TestWhatAPodMayInvent"},

	{"restarted engines are kept", "Indexer.keeps", "return x.keep && !v.Restarted", "return x.keep", "TestLossKeep"},
	{"all losses forget", "Indexer.keeps", "return x.keep && !v.Restarted", "return false", "TestLossKeep"},

	{"reports counted in an uncertain view", "rank.lossy", "return r.state == StatePartial || r.state == StateUncertain", "return r.state == StatePartial", "TestLossKeep"},

	{"a stream that began anew goes on", "Indexer.streamRestarted", "\tst.seq.Restart()\n", "", "TestStreamRestarted"},

	{"media form not in the root", "hasher.root", "b = append(b, byte(v.Media))", "_ = v.Media", "TestVariantKeys"},
	{"block size not in the root", "hasher.root", "b = binary.AppendUvarint(b, uint64(v.Block))", "", "TestVariantKeys"},
	{"pairs not in the root", "hasher.root", "b = strconv.AppendBool(b, v.Pairs)", "strconv.AppendBool(b, v.Pairs)", "TestVariantKeys"},
	{"pads not shifted", "pad", "of[j] = padShift + hash", "of[j] = hash", "TestScopesAgainstModel"},
	{"pads of the first token", "pad", "for j := range min(m.Length, len(of)) {", "for j := range min(m.Length, len(of), 1) {", "TestScopesAgainstModel"},
	{"a negative hash like its opposite", "lowBits", "\tif negative {", "\tif negative && n == 0 {", "TestScopesAgainstModel"},
	{"any hash is an integer", "lowBits", "return 0, false", "continue", "TestMediaHashes"},
	{"an item is in its first block only", "bareMedia", "\t\t\tif end > to {\n\t\t\t\tbreak", "\t\t\tif end > to && end < to {\n\t\t\t\tbreak", "TestScopesAgainstModel"},

	{"salt of bare media in the root too", "scorer.keysIn", "\tif v.Media == MediaBare {", "\tif false {", "TestScopesAgainstModel"},

	{"salt not among bare media", "bareMedia", "if from == 0 && salt != \"\" {", "if false {", "TestScopesAgainstModel"},

	{"bare media are salts", "converter.readExtras", "if v.Media != MediaBare && k.Block == 0", "if k.Block == 0", "TestScopesAgainstModel"},
	{"SGLang's salt ignored", "converter.readExtras", "\tsalt = e.Salt\n", "", "TestASaltedChainKeepsItsRoot"},
	{"pairs are tokens", "variantOf", "Media: media, Pairs: e.Pairs}", "Media: media}", "TestScopesAgainstModel"},

	{"pairs as long as tokens", "scorer.bestOf", "\tif row.Pairs {\n\t\tlength--", "\tif false {\n\t\tlength--", "TestScopesAgainstModel"},
	{"all rows of pairs", "scorer.bestOf", "\tif row.Pairs {\n\t\tlength--", "\tif true {\n\t\tlength--", "TestScopesAgainstModel"},
	{"locals of another unit", "scorer.cut", "plain == sc.plain {", "sc.plain != (index.Variant{}) {", "TestVariantKeys"},
	{"locals with a salt are plain", "scorer.cut", "if len(sc.media) > 0 || len(sc.extras) > 0 {", "if len(sc.media) > 0 {", "TestVariantKeys"},
	{"an error of one prompt for all", "Indexer.ScoreRequest", "index.Variant{}, nil\n", "index.Variant{}, sc.err\n", "TestMediaHashes"},

	{"an SGLang is guarded", "Profile.complete", "\tcase p.Media == MediaPad:", "\tcase false:", "TestSGLangCounts"},

	{"any bare block size", "variantOf", "return v, !e.Pairs && size <= maxBareBlock && size&(size-1) == 0", "return v, !e.Pairs", "TestVariantsAreFew"},
	{"bare pairs", "variantOf", "return v, !e.Pairs && size", "return v, size", "TestVariantsAreFew"},
	{"media of another form unnoticed", "converter.readExtras", "unscored = unscored || v.Media != MediaOffsets", "", "TestMediaOfAnotherForm"},
	{"bare media of another form unnoticed", "converter.readExtras", "unscored = unscored || v.Media != MediaBare", "", "TestMediaOfAnotherForm"},
	{"tiers by case", "tierOf", "switch strings.ToUpper(medium) {", "switch medium {", "TestTierNames"},

	{"model per pod exact", "Indexer.podModel", "profile:  profile.complete(),", "profile:  Profile{}.complete(),", "TestScopesAgainstModel"},

	{"items that are over go on", "bareMedia", "\t\t\tif end > from {", "\t\t\tif end > 0 {", "TestNestedItems"},
	{"media without a length", "bareMedia", "min(max(m.Length, 1), tokens-m.Offset)", "min(m.Length, tokens-m.Offset)", "TestNestedItems"},

	{"locals of the prompt before", "Indexer.ScoreRequest", "sc.keys, sc.plain, sc.err = sc.keys[:0], index.Variant{}, nil", "sc.keys, sc.err = sc.keys[:0], nil", "TestCachedTokens"},

	{"an adapter's number is media", "converter.readExtras", "if strconv.FormatInt(k.Int, 10) != e.Adapter {", "if strconv.FormatInt(k.Int, 10) != e.Adapter+\"x\" {", "TestScopesAgainstModel"},
	{"an adapter's name is media", "converter.readExtras", "if opens && k.Text == e.Adapter && e.Adapter != \"\" {", "if opens && k.Text == e.Adapter && e.Adapter == \"\" {", "TestScopesAgainstModel"},

	{"a body's model goes before the caller's", "Request.read", "if r.Model == \"\" && r.Candidates == nil {", "if r.Candidates == nil {", "TestBodiesOfOnePrompt"},
	{"a body's salt goes before the caller's", "Request.read", "if r.Salt == \"\" {", "if true {", "TestBodyScopes"},
	{"a body's salt is not heard", "Request.read", "filled.Salt = body.Salt", "filled.Salt = \"\"", "TestBodyScopes"},
	{"a chat gets a second BOS", "Indexer.renderChat", "text.Text, !asked.AddSpecial, base)", "text.Text, asked.AddSpecial, base)", "TestBodiesOfOnePrompt"},
	{"a completion gets no BOS", "Request.read", "body.Prompt, body.Tokens, !body.AddSpecial", "body.Prompt, body.Tokens, true", "TestBodiesOfOnePrompt"},
	{"what cannot be scored is a bad request", "ofBody", "if errors.Is(err, chat.ErrMalformed) || errors.Is(err, chat.ErrTemplate) {", "if true {", "TestBodyErrors"},
	{"a chat's media stay where they are", "Indexer.renderChat", "sc.prompt = sc.expanded\n", "", "TestBodyMedia"},

	{"rendered text gets a BOS", "Indexer.tokenize", "text, !rendered)", "text, true)", "TestBodiesOfOnePrompt"},
	{"media of a chat without a length", "Request.validate", "case asked != nil && m.Length == 0:", "case false:", "TestBodyMedia"},

	{"the body's model goes before candidates", "Request.read", "if r.Model == \"\" && r.Candidates == nil {", "if r.Model == \"\" {", "TestBodiesOfOnePrompt"},
	{"a completion is never rendered", "Request.read", "body.Prompt, body.Tokens, !body.AddSpecial", "body.Prompt, body.Tokens, false", "TestBodiesOfOnePrompt"},
	{"a body beside tokens", "Request.read", "if r.Prompt != \"\" || len(r.Tokens) > 0 || r.Rendered {", "if r.Prompt != \"\" || r.Rendered {", "TestBodyErrors"},
	{"a body that is rendered", "Request.read", "if r.Prompt != \"\" || len(r.Tokens) > 0 || r.Rendered {", "if r.Prompt != \"\" || len(r.Tokens) > 0 {", "TestBodyErrors"},
	{"what a template refuses is the host's fault", "ofBody", "errors.Is(err, chat.ErrMalformed) || errors.Is(err, chat.ErrTemplate) {", "errors.Is(err, chat.ErrMalformed) {", "TestBodyErrors"},
}}
