// Of the cases of a sweep a panel shows one at a time: its reader chooses which, by click or by keyboard.
function startCases() {
  document.querySelectorAll(".cases").forEach((group) => {
    const folds = [...group.children];
    const label = document.createElement("label");
    const select = document.createElement("select");
    select.append(...folds.map((fold, index) => new Option(fold.querySelector("summary").textContent, index)));
    const show = () => folds.forEach((fold, index) => {
      fold.hidden = index !== select.selectedIndex;
      fold.open = !fold.hidden;
    });
    select.addEventListener("change", show);
    label.append("Case: ", select, ` of ${folds.length}`);
    label.className = "pair";
    group.before(label);
    show();
  });
}
